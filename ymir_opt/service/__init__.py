"""The service: requests in, plans made and carried out, jobs listed.

* :mod:`ymir_opt.service.daemon`: the loop; :mod:`ymir_opt.service.once` carries out one plan.
* :mod:`ymir_opt.service.intake`: requests and wishes to cancel become jobs and ends.
* :mod:`ymir_opt.service.observe`: the snapshot of now.
* :mod:`ymir_opt.service.listing`: what ``jobs ps`` shows.
"""
