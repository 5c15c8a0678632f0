// expect: zero: a transfer must outlive the activations: give it a name
#include <zero/activations.hpp>
#include <zero/transfer/host_transfer.hpp>
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
  zero::HostTransfer transfer;
#ifndef ZERO_CONTROL
  zero::Activations acts{comm, {}, zero::activation::PaCpu{}, zero::HostTransfer{}};
#else
  zero::Activations acts{comm, {}, zero::activation::PaCpu{}, transfer};
#endif
}
