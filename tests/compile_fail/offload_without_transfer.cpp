// expect: zero: a placement in the slower memory needs a transfer
#include <zero/activations.hpp>
#include <zero/transfer/host_transfer.hpp>
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
  zero::HostTransfer transfer;
#ifndef ZERO_CONTROL
  zero::Activations acts{comm, {}, zero::activation::PaCpu{}};
#else
  zero::Activations acts{comm, {}, zero::activation::PaCpu{}, transfer};
#endif
}
