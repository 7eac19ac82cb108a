"""What several environments share: data from files and the hub, checkers, the sandbox."""
