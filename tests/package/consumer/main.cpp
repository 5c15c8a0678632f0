#include <zero/base/version.hpp>

#include <cstdio>

int main() {
  std::printf("zero %d.%d.%d\n", zero::version.major, zero::version.minor, zero::version.patch);
}
