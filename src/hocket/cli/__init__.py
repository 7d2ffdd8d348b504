"""The command line, one module per group of commands. May import all; nothing imports it."""
