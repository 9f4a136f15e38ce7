"""What is written, shown and summed up about a run; it lives in the launcher, so that restarts keep one stream."""
