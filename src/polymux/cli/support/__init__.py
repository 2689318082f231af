"""What the commands share: options, output, progress, signals, files."""
