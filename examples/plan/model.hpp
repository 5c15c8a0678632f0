/// @file
/// Memory, traffic and advice before there is a cluster: what the program `zero-plan` is made of.
/// Needs only the standard library, and no communicator.
#pragma once

#include "model/advise.hpp"
#include "model/cluster.hpp"
#include "model/device.hpp"
#include "model/policies.hpp"
#include "model/search.hpp"
#include "model/timing.hpp"
#include "model/transformer.hpp"
