// An MPI library, or oneCCL over one (-DWITH_CCL, as C++), as a peer: its start and its collectives. For peerbench.c and
// beside.c, which declare rank, nranks, input and output and the numbers of the collectives before this.
#ifndef MPI_PEER_H_
#define MPI_PEER_H_

#include <mpi.h>
#ifdef WITH_CCL
#include <oneapi/ccl.hpp>
#include <vector>
#endif

static void start_mpi(int argc, char **argv) {
  int n;
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (n != nranks) fail("the launcher started another number of ranks");
}

#ifdef WITH_CCL

static void call_mpi(int collective, size_t count, int root) {
  static const ccl::communicator *const communicator = [] {
    ccl::init();
    ccl::kvs::address_type address;
    ccl::shared_ptr_class<ccl::kvs> meeting;
    if (rank == 0) {
      meeting = ccl::create_main_kvs();
      address = meeting->get_address();
    }
    MPI_Bcast(address.data(), (int)address.size(), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0) meeting = ccl::create_kvs(address);
    return new ccl::communicator(ccl::create_communicator(nranks, rank, meeting));
  }();
  const size_t part = count / (size_t)nranks;
  const auto sum = ccl::reduction::sum;
  if (collective == kAllReduce) ccl::allreduce(input, output, count, sum, *communicator).wait();
  if (collective == kBroadcast) ccl::broadcast(output, count, root, *communicator).wait();
  if (collective == kAllGather)
    ccl::allgatherv(input, part, output, std::vector<size_t>((size_t)nranks, part), *communicator).wait();
  if (collective == kReduceScatter) ccl::reduce_scatter(input, output, part, sum, *communicator).wait();
}

#else

static void call_mpi(int collective, size_t count, int root) {
  const int all = (int)count, part = (int)(count / (size_t)nranks);
  int result = MPI_SUCCESS;
  if (collective == kAllReduce) result = MPI_Allreduce(input, output, all, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  if (collective == kBroadcast) result = MPI_Bcast(output, all, MPI_FLOAT, root, MPI_COMM_WORLD);
  if (collective == kAllGather) result = MPI_Allgather(input, part, MPI_FLOAT, output, part, MPI_FLOAT, MPI_COMM_WORLD);
  if (collective == kReduceScatter) result = MPI_Reduce_scatter_block(input, output, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  if (result != MPI_SUCCESS) fail("an MPI call failed");
}

#endif

#endif
