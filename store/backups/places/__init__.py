"""Where backups lie: the contract, and its implementations."""
