"""Everything people read: tables and pages, made from the results of the rooms below."""
