"""Tasks: texts or images with labels, from local files, packages' bundled data and scikit-learn."""
