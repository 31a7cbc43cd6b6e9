"""Pictures: machines, plans, times, programs and results, as a page, a figure or text.

`read_input` finds out what a file is, `page` makes the page of it, `figure` a static figure, `terminal` text.
"""
