"""The verbs of the command line, `app.main` runs one of them."""
