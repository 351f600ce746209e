"""How an instance stands: its processes, logs, groups, backups, and how far each is behind."""
