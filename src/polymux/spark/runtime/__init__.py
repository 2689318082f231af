"""The Spark session: Java, settings, start-up, workers, progress and the installation check."""
