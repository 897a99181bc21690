"""A Ray cluster of processes on this machine. It is told by lines on stdin what to do: "add [NAME=VALUE]" or "kill NUMBER"."""

from __future__ import annotations

import sys
from socket import socket

from ray.cluster_utils import Cluster

MEMORY = 80 << 20


def _free_port() -> int:
    with socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    client = _free_port()
    head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False, "ray_client_server_port": client}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = []
    print("address", cluster.address, client, flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        if command == "add":
            more = {"env_vars": dict([word.split("=") for word in words])} if words else {}
            nodes.append(cluster.add_node(num_cpus=1, object_store_memory=MEMORY, **more))
        else:
            cluster.remove_node(nodes[int(words[0])], allow_graceful=False)
        print("done", len(nodes) - 1, flush=True)
    cluster.shutdown()
