"""What the report shows, selected from the tables within a budget."""
