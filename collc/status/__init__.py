"""Jobs that run on this machine, read from outside, and the files that failed ones leave: who waits for whom."""
