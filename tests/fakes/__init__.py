"""Small servers in place of big ones, each checked against the real one by the same tests."""
