"""gcr on a Ray cluster: a small actor on each node carries requests to the gcr of that node (docs/cluster.md).

node.py     the actor's own part, without Ray
actors.py   the actors, in Ray
athand.py   the clusters that this machine is part of
cluster.py  the nodes, as gcr asks for them

Ray is imported when a cluster is asked for. Nothing of an image travels through Ray.
"""

from gcr_ray.cluster import RayCluster

__all__ = ["RayCluster"]
