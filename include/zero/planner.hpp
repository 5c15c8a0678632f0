/// @file
/// Memory, traffic and advice before there is a cluster: what the program `zero-plan` is made of.
/// Needs only the standard library, and no communicator.
#pragma once

#include "zero/planner/advise.hpp"
#include "zero/planner/cluster.hpp"
#include "zero/planner/device.hpp"
#include "zero/planner/policies.hpp"
#include "zero/planner/search.hpp"
#include "zero/planner/timing.hpp"
#include "zero/planner/transformer.hpp"
