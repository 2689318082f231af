"""The selected data as sentences, a page model, and one HTML file."""
