"""Shows machines, plans, times, programs and results as a page, a figure or text.

`read` detects the kind of a file and makes its views, `page` makes the page, `static` and `figure` make static figures,
`terminal` makes text.
"""
