"""The engine: a checkpoint and a restore as transactions over the processes of one job.

It talks to agents, workers, control helpers and keepers through their peers and touches no vendor library itself.
"""
