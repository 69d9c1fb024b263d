"""The ways to the daemon of a user: its folder, its launch, its client, its successor."""
