"""Reads the communicators of running jobs from outside, and the files of failed jobs, and finds the blocking ranks."""
