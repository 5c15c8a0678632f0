/// @file
/// Which ranks reach each other's memory: a stand-in for NCCL's header of this name.
#pragma once

#include <nccl.h>

struct ncclTeam {
  int nRanks;
  int rank;
  int stride;
};
using ncclTeam_t = ncclTeam;

ncclTeam_t ncclTeamLsa(ncclComm_t comm);
