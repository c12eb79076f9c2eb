use te_memory::Reservation;

fn end(reservation: Reservation) {
    let _region = reservation.commit();
    let _memory = reservation.abort();
}

fn main() {
    let _ = end;
}
