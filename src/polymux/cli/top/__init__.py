"""The live view of `polymux top`: what it watches, and the screen."""
