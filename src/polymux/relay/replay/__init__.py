"""Recordings spoken again: the script of a session, its pace, and the comparison of both runs."""
