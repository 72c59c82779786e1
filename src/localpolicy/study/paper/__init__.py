"""The paper's tables and figures, each from one call, beside what was published."""
