"""What is asked and what is right: problems, entries, suites, truth and the comparison."""
