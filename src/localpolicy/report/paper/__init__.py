"""The paper's tables and figures shown, beside what was published."""
