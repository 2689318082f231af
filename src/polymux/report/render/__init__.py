"""Render the selected data: sentences, page model, HTML file."""
