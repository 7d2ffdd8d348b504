"""The command line, one module per group of commands. It may import all; nothing imports it."""
