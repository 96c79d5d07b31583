"""One script through each door, `check`, `run`, `auto` and `migrate`, whose verdicts and numbers must be the same."""
