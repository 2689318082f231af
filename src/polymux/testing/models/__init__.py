"""Model peers with encoders of their own: conversations whose truth is known."""
