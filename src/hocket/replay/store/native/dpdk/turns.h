// EAL's own thread and ours take turns.
//
// memif's driver connects and disconnects on EAL's thread, and unmaps a connection's memory there
// whether or not ours is copying to it: who sent to a peer that ended in that moment ended with it.
// So EAL's thread stands still in an alarm of ours, but for moments in which ours does.

#pragma once

#include "../desk.h"

namespace hocket {

// From now on. Returns once EAL's thread stands still.
void take_turns();

// Gives EAL's thread its moment if the last was long ago, longer if there is work; to be called
// between uses of the ports. Nothing where turns are not taken.
void give_turn(bool busy, Clock::time_point now);

}  // namespace hocket
