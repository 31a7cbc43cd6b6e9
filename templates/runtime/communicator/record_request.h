// Records of a job that has not failed: upon the signal that COLLC_DUMP_SIGNAL names, every rank of this process leaves the
// file of its last calls in COLLC_DUMP. The handler only posts a semaphore; a thread, which exists only where the variable is
// set, writes the files. A handler that the program had before still runs.
#pragma once
#include <memory>

#include "communicator/flight.h"

namespace collc {

// Catches the signal from now on, if the variable is set; once for each process.
Status listen_for_requests();

// `record` is written at every request for as long as it exists.
void answer_requests(const std::shared_ptr<FlightRecord> &record);

}  // namespace collc
