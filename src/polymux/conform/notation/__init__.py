"""How the frames of each protocol are written in the scripts of cases, and encoded."""
