"""Reports of runs: JSON, JUnit XML, and a folder of HTML pages."""
