"""The peer of `averaging`: Flower's simulation of the same job, run by a Python that has `flwr[simulation]`."""

from __future__ import annotations

import sys

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

NODES, ROUNDS, FLOATS = 100, 10, 1_000_000
client, server = ClientApp(), ServerApp()


@client.train()
def train(message, context):
    vectors = message.content["arrays"].to_numpy_ndarrays()
    content = {"arrays": ArrayRecord([vector + np.float32(0.01) for vector in vectors]),
               "metrics": MetricRecord({"num-examples": 1})}
    return Message(content=RecordDict(content), reply_to=message)


@server.main()
def main(grid, context):
    strategy = FedAvg(fraction_train=float(sys.argv[1]), fraction_evaluate=0.0, min_train_nodes=1,
                      min_available_nodes=NODES)
    done = strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros(FLOATS, np.float32)]), num_rounds=ROUNDS)
    print(f"MEAN {float(done.arrays.to_numpy_ndarrays()[0].mean()):.5f}", flush=True)


if __name__ == "__main__":
    run_simulation(server, client, num_supernodes=NODES,
                   backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
