"""The answer for a person: one document drawn from the view, for the page, the terminal and JSON alike."""
