// EAL's own thread and ours take turns.
//
// memif's driver connects and disconnects on EAL's thread. There it unmaps the memory of a
// connection, even while our thread copies to it, so a peer that ends could crash us. Therefore
// EAL's thread is kept in an alarm of ours, except for moments in which our thread stands still.

#pragma once

#include "../desk.h"

namespace hocket {

// Begins to take turns. Returns when EAL's thread stands still.
void take_turns();

// Gives EAL's thread a moment if the last was long ago. If there is work, that is longer. To be
// called between uses of the ports. Does nothing unless turns are taken.
void give_turn(bool busy, Clock::time_point now);

}  // namespace hocket
