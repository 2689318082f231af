"""Where capture bytes come from: files, pipes, remote stores, and how they are read."""
