"""How processes of one user find the daemon: its folder, its launch, its client, its successor."""
