"""Load the report's data from the tables, within the budget."""
