"""The Spark data source `polymux`, for batch and streaming reads."""
