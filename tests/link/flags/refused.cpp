// A communicator and an optimizer that one unit makes and another is handed.
#include <zero/comm/self.hpp>
#include <zero/sharded_optimizer.hpp>

using Optimizer = zero::ShardedOptimizer<zero::Self>;
void train(zero::Self&, Optimizer*);

#if defined(CALLER)
int main() {
  zero::Self comm;
  train(comm, nullptr);
}
#else
void train(zero::Self&, Optimizer*) {}
#endif
