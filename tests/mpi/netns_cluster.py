"""A cluster of network namespaces on one machine: real TCP between "nodes", links that can be
shaped, and counters of what each node's interface has sent. Needs root and iproute2; nothing leaves
it.

As a program it is a remote shell for Open MPI's launcher:
netns_cluster.py [OPTION...] HOST COMMAND...
"""

import atexit
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

NETWORK = "10.77.0"
PREFIX = "ZERO_NETNS"  # the environment variable that tells remote shells which cluster is meant
# Ethernet 14, IP 20, TCP 32 with its time stamps: what a packet has beside its payload. Interfaces
# count bytes and packets as they are handed to them, so that this holds for long ones, too.
HEADERS = 66
SEGMENT = 1514 - HEADERS


def ip(*arguments, check=True):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=check).stdout


def lacking():
    """Why no cluster can be made here, or None."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    for program in ("ip", "tc", "unshare"):
        if shutil.which(program) is None:
            return f"there is no '{program}': it is in iproute2 or util-linux"
    name = f"zero{os.getpid()}-trial"
    try:
        ip("netns", "add", name)
        ip("-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
        subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "v0", "root", "tbf", "rate",
                        "1gbit", "burst", "256kb", "limit", "1mb"], capture_output=True, check=True)
        subprocess.run(["ip", "netns", "exec", name, "unshare", "--uts", "--ipc", "--mount",
                        "true"], capture_output=True, check=True)
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made here: {error.stderr or error}".strip()
    finally:
        ip("netns", "del", name, check=False)
    return None


def remove_stale():
    """Clusters of processes that are gone and had no time to clean up."""
    for name in re.findall(r"^zero(\d+)-\S+", ip("netns", "list", check=False), re.MULTILINE):
        if not pathlib.Path("/proc", name).exists():
            remove(f"zero{name}")


def remove(prefix):
    for line in ip("netns", "list", check=False).splitlines():
        if line.startswith(prefix + "-"):
            ip("netns", "del", line.split()[0], check=False)


def on_node(prefix, node):
    """Words before a command that runs on a node: with a name and shared memory of its own, so that
    ranks of two nodes do not meet there."""
    return ["ip", "netns", "exec", f"{prefix}-n{node}", "unshare", "--uts", "--ipc", "--mount",
            "sh", "-c", 'hostname "$0" && mount -t tmpfs -o size=2g tmpfs /dev/shm && exec "$@"',
            f"zero-node{node}"]


class Cluster:
    """Nodes on one switch. Removed at the end of the process, too."""

    def __init__(self, nodes, rate=None):
        self.nodes = nodes
        self.prefix = f"zero{os.getpid()}"
        remove_stale()
        atexit.register(self.close)
        switch = f"{self.prefix}-switch"
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "link", "set", "br0", "up")
        for node in range(1, nodes + 1):
            name = f"{self.prefix}-n{node}"
            ip("netns", "add", name)
            ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"port{node}",
               "netns", switch)
            ip("-n", switch, "link", "set", f"port{node}", "master", "br0", "up")
            ip("-n", name, "addr", "add", f"{NETWORK}.{node}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")
        if rate:
            self.shape(rate)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        remove(self.prefix)
        atexit.unregister(self.close)

    def shape(self, rate):
        """Nodes send at most so much from now on, such as 100mbit. The queue holds whatever sockets
        may send: what it dropped would be sent twice, and take longer than the link."""
        for node in range(1, self.nodes + 1):
            subprocess.run(["tc", "-n", f"{self.prefix}-n{node}", "qdisc", "replace", "dev", "eth0",
                            "root", "tbf", "rate", rate, "burst", "256kb", "limit", "32mb"],
                           capture_output=True, check=True)

    def payloads(self):
        """Bytes that each node's interface has sent, less headers and what TCP sent again."""
        found = []
        for node in range(1, self.nodes + 1):
            name = f"{self.prefix}-n{node}"
            text = ip("-n", name, "-s", "-j", "link", "show", "eth0")
            sent = json.loads(text)[0]["stats64"]["tx"]
            names, values = [line.split() for line in ip("netns", "exec", name, "cat",
                             "/proc/net/snmp").splitlines() if line.startswith("Tcp:")]
            again = int(values[names.index("RetransSegs")])
            found.append(sent["bytes"] - HEADERS * sent["packets"] - SEGMENT * again)
        return found

    def run(self, mpirun, flags, per_node, command, timeout):
        """A job of Open MPI with so many ranks on each node, numbered node by node. Over a single
        connection of two ranks a handshake for data stands behind data that goes the other way, so
        that links are busy one way at a time."""
        hosts = ",".join(f"{NETWORK}.{node}:{per_node}" for node in range(1, self.nodes + 1))
        words = [*on_node(self.prefix, 1), mpirun, *flags, "--allow-run-as-root", "--mca",
                 "plm_rsh_agent", f"{sys.executable} {pathlib.Path(__file__).resolve()}", "--mca",
                 "plm_rsh_no_tree_spawn", "1", "--mca", "btl", "tcp,self,vader", "--mca",
                 "btl_tcp_if_include", "eth0", "--mca", "btl_tcp_links", "2", "--mca",
                 "oob_tcp_if_include", "eth0", "--mca", "pml", "ob1", "--host", hosts, "--map-by",
                 "slot", "--bind-to", "none", "-n", str(per_node * self.nodes), *command]
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                           OMPI_ALLOW_RUN_AS_ROOT="1", **{PREFIX: self.prefix})
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=environment, start_new_session=True)
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate()
            raise
        return process.returncode, out, err


def main():
    words = sys.argv[1:]
    while words and words[0].startswith("-"):
        words.pop(0)
    host, node = words[0].rsplit(".", 1)
    if host != NETWORK or PREFIX not in os.environ:
        sys.exit(f"unknown host: {words[0]}")
    command = [*on_node(os.environ[PREFIX], node), "sh", "-c", " ".join(words[1:])]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
